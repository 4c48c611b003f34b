package main

import (
	"strconv"

	"github.com/spf13/cobra"
)

func (a *app) newTopicList() *cobra.Command {
	cmd := &cobra.Command{
		Use:     "list",
		Short:   "List the topics",
		Example: "  keyhole topic list --json",
		Args:    exactly(0, ""),
		RunE: func(cmd *cobra.Command, _ []string) error {
			topics, body, err := a.listTopics(cmd.Context())
			if err != nil {
				return err
			}
			if a.json {
				return a.printBody(body)
			}
			var rows [][]string
			for _, t := range topics {
				rows = append(rows, []string{t.Name, strconv.Itoa(int(t.Partitions)), t.ID})
			}
			return a.printTable([]string{"NAME", "PARTITIONS", "ID"}, rows)
		},
	}
	return a.adminFlags(cmd)
}
