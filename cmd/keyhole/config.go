package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"

	"github.com/spf13/cobra"
)

func (a *app) newConfig() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "config",
		Short: "Read and change the cluster properties and feature flags of a running node",
		Long: `Reads and changes the cluster properties and feature flags of a running node.
Changes hold at once and survive a restart. (The settings that serve starts with
are flags; see keyhole serve --help.)`,
		Example: "  keyhole config set kv_index_remote_read_enabled true",
	}
	cmd.AddCommand(a.newConfigGet(), a.newConfigSet(), a.newConfigList())
	return asGroup(cmd)
}

// clusterConfig is what the node runs with: properties by name, and the states
// of the feature flags, which the command line treats alike.
type clusterConfig struct {
	properties map[string]json.RawMessage
	features   map[string]string
}

func (a *app) clusterConfig(ctx context.Context) (clusterConfig, error) {
	c := clusterConfig{features: make(map[string]string)}
	if _, err := a.adminGet(ctx, []string{"v1", "cluster_config"}, &c.properties); err != nil {
		return c, err
	}
	var list struct {
		Features []struct{ Name, State string } `json:"features"`
	}
	if _, err := a.adminGet(ctx, []string{"v1", "features"}, &list); err != nil {
		return c, err
	}
	for _, f := range list.Features {
		c.features[f.Name] = f.State
	}
	return c, nil
}

// lookup gives the value of a property or feature as JSON.
func (c clusterConfig) lookup(name string) (json.RawMessage, error) {
	if v, ok := c.properties[name]; ok {
		return v, nil
	}
	if state, ok := c.features[name]; ok {
		return json.Marshal(state)
	}
	return nil, fmt.Errorf("no property or feature %q; 'keyhole config list' shows them all", name)
}

// plain renders a JSON value for people: a string without its quotes.
func plain(v json.RawMessage) string {
	var s string
	if json.Unmarshal(v, &s) == nil {
		return printable(s)
	}
	return string(bytes.TrimSpace(v))
}

// completeProperties offers the names of properties and features.
func (a *app) completeProperties(cmd *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
	if len(args) > 0 || a.fromEnv(cmd) != nil {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	a.client.timeout = completionPatience
	c, err := a.clusterConfig(cmd.Context())
	if err != nil {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	var names []string
	for name := range c.properties {
		names = append(names, name)
	}
	for name := range c.features {
		names = append(names, name)
	}
	return names, cobra.ShellCompDirectiveNoFileComp
}
