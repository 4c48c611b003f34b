package main

import (
	"encoding/json"
	"fmt"

	"github.com/spf13/cobra"
)

func (a *app) newConfigGet() *cobra.Command {
	cmd := &cobra.Command{
		Use:               "get NAME",
		Short:             "Print the value of a cluster property or the state of a feature",
		Example:           "  keyhole config get kv_index_remote_read_enabled",
		Args:              exactly(1, "NAME"),
		ValidArgsFunction: a.completeProperties,
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := a.clusterConfig(cmd.Context())
			if err != nil {
				return err
			}
			v, err := c.lookup(args[0])
			if err != nil {
				return err
			}
			if a.json {
				return a.printJSON(map[string]json.RawMessage{args[0]: v})
			}
			_, err = fmt.Fprintln(a.out, plain(v))
			return err
		},
	}
	return a.adminFlags(cmd)
}
