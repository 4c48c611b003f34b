package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strings"

	"github.com/spf13/cobra"
)

func (a *app) newConfigSet() *cobra.Command {
	var reset bool
	cmd := &cobra.Command{
		Use:   "set NAME VALUE",
		Short: "Change a cluster property or a feature, live",
		Example: `  keyhole config set kv_index active
  keyhole config set kv_index_remote_read_enabled true
  keyhole config set cloud_storage_cache_size --default`,
		Args: func(cmd *cobra.Command, args []string) error {
			if reset {
				return exactly(1, "NAME with --default")(cmd, args)
			}
			return exactly(2, "NAME VALUE")(cmd, args)
		},
		ValidArgsFunction: a.completeProperties,
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := a.clusterConfig(cmd.Context())
			if err != nil {
				return err
			}
			name := args[0]
			if _, err := c.lookup(name); err != nil {
				return err
			}
			var body []byte
			if _, feature := c.features[name]; feature {
				if reset {
					return misused("%s is a feature: set it to active or disabled", name)
				}
				body, err = a.adminCall(cmd.Context(), http.MethodPut, []string{"v1", "features", name}, map[string]string{"state": args[1]})
			} else {
				body, err = a.setProperty(cmd.Context(), name, args[1:])
			}
			var refused *statusError
			if errors.As(err, &refused) && strings.HasPrefix(refused.text, name+": ") {
				return fmt.Errorf("set %w", err) // which names the property
			}
			if err != nil {
				return fmt.Errorf("set %s: %w", name, err)
			}
			if a.json {
				return a.printBody(body)
			}
			return a.printNow(cmd.Context(), name)
		},
	}
	cmd.Flags().BoolVar(&reset, "default", false, "give the property back its default")
	return a.adminFlags(cmd)
}

// setProperty sets a property to value[0], or to its default without one.
func (a *app) setProperty(ctx context.Context, name string, value []string) ([]byte, error) {
	request := struct {
		Upsert map[string]string `json:"upsert"`
		Remove []string          `json:"remove"`
	}{map[string]string{}, []string{}}
	if len(value) > 0 {
		request.Upsert[name] = value[0]
	} else {
		request.Remove = append(request.Remove, name)
	}
	return a.adminCall(ctx, http.MethodPut, []string{"v1", "cluster_config"}, request)
}

// printNow prints what is in force after a change.
func (a *app) printNow(ctx context.Context, name string) error {
	c, err := a.clusterConfig(ctx)
	if err != nil {
		return err
	}
	var v json.RawMessage
	if v, err = c.lookup(name); err != nil {
		return err
	}
	_, err = fmt.Fprintf(a.out, "%s = %s\n", name, plain(v))
	return err
}
