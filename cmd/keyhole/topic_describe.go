package main

import (
	"fmt"
	"maps"
	"slices"
	"strconv"

	"github.com/spf13/cobra"
)

func (a *app) newTopicDescribe() *cobra.Command {
	cmd := &cobra.Command{
		Use:               "describe TOPIC",
		Short:             "Show a topic and its properties",
		Example:           "  keyhole topic describe prices",
		Args:              exactly(1, "TOPIC"),
		ValidArgsFunction: a.completeTopics,
		RunE: func(cmd *cobra.Command, args []string) error {
			t, body, err := a.describeTopic(cmd.Context(), args[0])
			if err != nil {
				return fmt.Errorf("describe topic %s: %w", args[0], err)
			}
			if a.json {
				return a.printBody(body)
			}
			rows := [][]string{{"name", t.Name}, {"id", t.ID}, {"partitions", strconv.Itoa(int(t.Partitions))}}
			if err := a.printTable(nil, rows); err != nil {
				return err
			}
			fmt.Fprintln(a.out)
			rows = nil
			for _, name := range slices.Sorted(maps.Keys(t.Configs)) {
				from := "set"
				if t.Configs[name].Default {
					from = "default"
				}
				rows = append(rows, []string{name, t.Configs[name].Value, from})
			}
			return a.printTable([]string{"PROPERTY", "VALUE", "SOURCE"}, rows)
		},
	}
	return a.adminFlags(cmd)
}
