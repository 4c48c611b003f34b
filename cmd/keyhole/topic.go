package main

import (
	"context"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"keyhole/config"
)

func (a *app) newTopic() *cobra.Command {
	cmd := &cobra.Command{
		Use:     "topic",
		Short:   "Make, list, describe, change and delete topics",
		Example: "  keyhole topic create prices --partitions 3",
	}
	cmd.AddCommand(a.newTopicCreate(), a.newTopicList(), a.newTopicDescribe(), a.newTopicAlter(), a.newTopicDelete())
	return asGroup(cmd)
}

// topicInfo is a topic as the admin listener describes it.
type topicInfo struct {
	Name       string                 `json:"name"`
	ID         string                 `json:"id"`
	Partitions int32                  `json:"partitions"`
	Configs    map[string]configValue `json:"configs"`
}

type configValue struct {
	Value   string `json:"value"`
	Default bool   `json:"default"`
}

// adminFlags are the flags of a command that asks the admin listener and
// prints what it says.
func (a *app) adminFlags(cmd *cobra.Command) *cobra.Command {
	a.adminFlag(cmd)
	a.timeoutFlag(cmd, time.Minute)
	a.jsonFlag(cmd)
	return cmd
}

// pairs splits name=value arguments.
func pairs(flag string, list []string) (map[string]string, error) {
	out := make(map[string]string, len(list))
	for _, p := range list {
		name, value, ok := strings.Cut(p, "=")
		if !ok || name == "" {
			return nil, misused("--%s wants name=value, got %q", flag, p)
		}
		if _, twice := out[name]; twice {
			return nil, misused("--%s gives %q twice", flag, name)
		}
		out[name] = value
	}
	return out, nil
}

// completionPatience is how long the shell's completion waits for the node.
const completionPatience = time.Second

// completeTopics offers the names of the topics for the first argument. It
// gives up quickly, because somebody is waiting with a finger on a key.
func (a *app) completeTopics(cmd *cobra.Command, args []string, begun string) ([]string, cobra.ShellCompDirective) {
	if len(args) > 0 {
		return nil, cobra.ShellCompDirectiveDefault
	}
	if a.fromEnv(cmd) != nil {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	a.client.timeout = completionPatience
	if cmd.Flags().Lookup("admin-url") == nil { // a command of the data listener
		a.client.adminURL = defaultAdminURL
		if v, ok := a.env(config.EnvName("admin-url")); ok && v != "" {
			a.client.adminURL = v
		}
	}
	topics, _, err := a.listTopics(cmd.Context())
	if err != nil {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	var names []string
	for _, t := range topics {
		if strings.HasPrefix(t.Name, begun) {
			names = append(names, t.Name)
		}
	}
	slices.Sort(names)
	return names, cobra.ShellCompDirectiveNoFileComp
}

func (a *app) listTopics(ctx context.Context) ([]topicInfo, []byte, error) {
	var list struct {
		Topics []topicInfo `json:"topics"`
	}
	body, err := a.adminGet(ctx, []string{"v1", "topics"}, &list)
	return list.Topics, body, err
}

func (a *app) describeTopic(ctx context.Context, name string) (topicInfo, []byte, error) {
	var t topicInfo
	body, err := a.adminGet(ctx, []string{"v1", "topics", name}, &t)
	return t, body, err
}
