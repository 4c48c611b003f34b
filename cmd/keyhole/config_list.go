package main

import (
	"encoding/json"
	"maps"
	"slices"

	"github.com/spf13/cobra"
)

func (a *app) newConfigList() *cobra.Command {
	cmd := &cobra.Command{
		Use:     "list",
		Short:   "List all cluster properties and features with what they are for",
		Example: "  keyhole config list",
		Args:    exactly(0, ""),
		RunE: func(cmd *cobra.Command, _ []string) error {
			c, err := a.clusterConfig(cmd.Context())
			if err != nil {
				return err
			}
			if a.json {
				return a.printJSON(map[string]any{"properties": c.properties, "features": c.features})
			}
			var schema map[string]struct {
				Default     json.RawMessage `json:"default"`
				Description string          `json:"description"`
			}
			if _, err := a.adminGet(cmd.Context(), []string{"v1", "cluster_config", "schema"}, &schema); err != nil {
				return err
			}
			var rows [][]string
			for _, name := range slices.Sorted(maps.Keys(c.features)) {
				rows = append(rows, []string{name, c.features[name], "", "Feature flag: active or disabled."})
			}
			for _, name := range slices.Sorted(maps.Keys(c.properties)) {
				s := schema[name]
				rows = append(rows, []string{name, plain(c.properties[name]), plain(s.Default), s.Description})
			}
			return a.printTable([]string{"NAME", "VALUE", "DEFAULT", "DESCRIPTION"}, rows)
		},
	}
	return a.adminFlags(cmd)
}
