package main

import (
	"fmt"
	"net/http"

	"github.com/spf13/cobra"
)

func (a *app) newTopicDelete() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "delete TOPIC",
		Short: "Delete a topic",
		Long: `Deletes a topic: its keys are gone at once, its files and objects follow. Objects
stay in the bucket for the grace period (cloud_storage_gc_grace_ms).`,
		Example:           "  keyhole topic delete prices",
		Args:              exactly(1, "TOPIC"),
		ValidArgsFunction: a.completeTopics,
		RunE: func(cmd *cobra.Command, args []string) error {
			body, err := a.adminCall(cmd.Context(), http.MethodDelete, []string{"v1", "topics", args[0]}, nil)
			if err != nil {
				return fmt.Errorf("delete topic %s: %w", args[0], err)
			}
			if a.json {
				if len(body) == 0 {
					return a.printJSON(map[string]string{"deleted": args[0]})
				}
				return a.printBody(body)
			}
			_, err = fmt.Fprintf(a.out, "deleted topic %s\n", args[0])
			return err
		},
	}
	return a.adminFlags(cmd)
}
