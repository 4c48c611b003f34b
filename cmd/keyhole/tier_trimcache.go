package main

import (
	"fmt"
	"net/http"

	"github.com/spf13/cobra"
)

func (a *app) newTierTrimCache() *cobra.Command {
	cmd := &cobra.Command{
		Use:     "trim-cache",
		Short:   "Empty the chunk cache of the node",
		Example: "  keyhole tier trim-cache",
		Args:    exactly(0, ""),
		RunE: func(cmd *cobra.Command, _ []string) error {
			body, err := a.adminCall(cmd.Context(), http.MethodPost, []string{"v1", "cloud_storage", "cache", "trim"}, nil)
			if err != nil {
				return fmt.Errorf("trim the cache: %w", err)
			}
			if a.json {
				if len(body) == 0 {
					return a.printJSON(map[string]bool{"trimmed": true})
				}
				return a.printBody(body)
			}
			_, err = fmt.Fprintln(a.out, "cache is empty")
			return err
		},
	}
	return a.adminFlags(cmd)
}
