package catalog

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"time"
)

// ClusterConfig gives the effective value of every cluster property as a bool,
// an int64 or a string.
func (c *Catalog) ClusterConfig() map[string]any {
	sw := c.switches.Load()
	out := make(map[string]any, len(clusterTable))
	for i := range clusterTable {
		p := &clusterTable[i]
		out[p.Name] = p.typed(sw.over.get(p, sw.store))
	}
	return out
}

// ClusterSchema describes every cluster property, by name.
func (c *Catalog) ClusterSchema() map[string]PropertySchema { return clusterTable.schema(c.store()) }

// LookupTimeout is the property kv_index_lookup_timeout_ms.
func (c *Catalog) LookupTimeout() time.Duration { return c.switches.Load().lookupTimeout }

// AlterCluster sets and removes cluster properties; values may be strings or
// JSON values, and a removed or null one is back at its default. The change is
// checked as a whole, durable, then in force; the result is the config version
// that has it. A request that changes nothing keeps the version. Errors:
// *InvalidError with nothing applied, ErrClosed, and those of the disk.
func (c *Catalog) AlterCluster(_ context.Context, upsert map[string]any, remove []string) (version int64, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed.Load() {
		return 0, ErrClosed
	}
	old := c.switches.Load()
	properties, changes, err := clusterTable.edit(old.over, upsert, remove, old.store)
	if err != nil {
		return 0, err
	}
	bad := &InvalidError{}
	checkCluster(properties, bad)
	if err := bad.orNil(); err != nil {
		return 0, err
	}
	if maps.Equal(old.over, properties) {
		return old.version, nil
	}
	data := old.data()
	data.Properties = properties
	sw, err := c.applyLocked(data)
	if err != nil {
		return 0, err
	}
	for _, ch := range changes {
		c.o.Logger.Info("cluster property changed", "property", ch.Name, "old", ch.Old, "new", ch.New, "config_version", sw.version)
	}
	return sw.version, nil
}

// applyLocked makes data durable as the next version and puts it in force.
func (c *Catalog) applyLocked(data *configData) (*switches, error) {
	data.Version++
	if err := c.disk.write(c.disk.path(configFile), formatConfig, data); err != nil {
		return nil, fmt.Errorf("write configuration: %w", err)
	}
	sw := c.newSwitches(data)
	c.switches.Store(sw)
	c.sweeper.wake() // the grace period may be another one
	c.wakeFollower() // likewise, or the pace of a replica
	c.tiers.SetCacheSize(sw.cacheBytes)
	c.tiers.SetMaxReads(int(sw.remoteReads))
	for _, t := range c.snap.Load().sorted {
		t.configure(sw)
	}
	return sw, nil
}

// Features gives every feature flag with its state, by name.
func (c *Catalog) Features() []Feature {
	sw := c.switches.Load()
	var out []Feature
	for _, name := range slices.Sorted(maps.Keys(sw.features)) {
		out = append(out, Feature{Name: name, State: sw.features[name]})
	}
	return out
}

// SetFeature switches a feature flag, durably and then at once. Topics keep
// their properties when the flag goes off; they come back with it. Errors:
// ErrFeatureNotFound, *InvalidError, ErrClosed, and those of the disk.
func (c *Catalog) SetFeature(_ context.Context, name, state string) error {
	if !slices.Contains(featureNames, name) {
		return fmt.Errorf("%w: %q", ErrFeatureNotFound, name)
	}
	if state != StateActive && state != StateDisabled {
		bad := &InvalidError{}
		bad.add("state", fmt.Sprintf("must be %s or %s", StateActive, StateDisabled))
		return bad
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed.Load() {
		return ErrClosed
	}
	old := c.switches.Load()
	if old.features[name] == state {
		return nil
	}
	data := old.data()
	data.Features[name] = state
	sw, err := c.applyLocked(data)
	if err != nil {
		return err
	}
	c.o.Logger.Info("feature changed", "feature", name, "old", old.features[name], "new", state, "config_version", sw.version)
	return nil
}
