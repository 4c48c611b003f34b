package main

import (
	"fmt"
	"net/http"

	"github.com/spf13/cobra"
)

func (a *app) newTopicAlter() *cobra.Command {
	var set, remove []string
	cmd := &cobra.Command{
		Use:   "alter-config TOPIC",
		Short: "Set properties of a topic, or give them back their defaults",
		Example: `  keyhole topic alter-config prices --set redpanda.remote.read=false
  keyhole topic alter-config prices --delete redpanda.remote.read`,
		Args:              exactly(1, "TOPIC"),
		ValidArgsFunction: a.completeTopics,
		RunE: func(cmd *cobra.Command, args []string) error {
			upsert, err := pairs("set", set)
			if err != nil {
				return err
			}
			if len(upsert)+len(remove) == 0 {
				return misused("wants --set name=value or --delete name")
			}
			if remove == nil {
				remove = []string{}
			}
			request := map[string]any{"upsert": upsert, "remove": remove}
			body, err := a.adminCall(cmd.Context(), http.MethodPut, []string{"v1", "topics", args[0], "config"}, request)
			if err != nil {
				return fmt.Errorf("alter topic %s: %w", args[0], err)
			}
			if a.json {
				return a.printBody(body)
			}
			_, err = fmt.Fprintf(a.out, "altered topic %s\n", args[0])
			return err
		},
	}
	cmd.Flags().StringArrayVar(&set, "set", nil, "property to set, as name=value (repeatable)")
	cmd.Flags().StringArrayVar(&remove, "delete", nil, "property to give back its default (repeatable)")
	return a.adminFlags(cmd)
}
