package main

import (
	"fmt"
	"net/http"

	"github.com/spf13/cobra"
)

func (a *app) newTopicCreate() *cobra.Command {
	var (
		partitions int32
		configs    []string
	)
	cmd := &cobra.Command{
		Use:   "create TOPIC",
		Short: "Make a topic",
		Example: `  keyhole topic create prices
  keyhole topic create prices --partitions 6 \
      -c redpanda.kv.index.enabled=true -c segment.bytes=16777216`,
		Args: exactly(1, "TOPIC"),
		RunE: func(cmd *cobra.Command, args []string) error {
			properties, err := pairs("topic-config", configs)
			if err != nil {
				return err
			}
			request := map[string]any{"name": args[0], "partitions": partitions, "configs": properties}
			body, err := a.adminCall(cmd.Context(), http.MethodPost, []string{"v1", "topics"}, request)
			if err != nil {
				return fmt.Errorf("create topic %s: %w", args[0], err)
			}
			if a.json {
				return a.printBody(body)
			}
			_, err = fmt.Fprintf(a.out, "created topic %s with %d partition(s)\n", args[0], partitions)
			return err
		},
	}
	cmd.Flags().Int32VarP(&partitions, "partitions", "p", 1, "number of partitions, 1 to 10000; it cannot be changed later")
	cmd.Flags().StringArrayVarP(&configs, "topic-config", "c", nil, "property of the topic as name=value (repeatable)")
	return a.adminFlags(cmd)
}
