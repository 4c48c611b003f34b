package main

import (
	"fmt"
	"net/http"
	"strconv"

	"github.com/spf13/cobra"
)

func (a *app) newTierManifest() *cobra.Command {
	cmd := &cobra.Command{
		Use:               "manifest TOPIC PARTITION",
		Short:             "Print the manifest of a partition as it is in the bucket",
		Example:           "  keyhole tier manifest prices 0",
		Args:              exactly(2, "TOPIC PARTITION"),
		ValidArgsFunction: a.completeTopics,
		RunE: func(cmd *cobra.Command, args []string) error {
			partitions, err := a.partitionsArg(cmd.Context(), args)
			if err != nil {
				return err
			}
			p := partitions[0]
			body, err := a.adminCall(cmd.Context(), http.MethodGet, []string{"v1", "cloud_storage", "manifest", args[0], strconv.Itoa(int(p))}, nil)
			if err != nil {
				return fmt.Errorf("manifest of %s/%d: %w", args[0], p, err)
			}
			return a.printBody(body) // JSON, with and without --json
		},
	}
	return a.adminFlags(cmd)
}
