package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"

	"keyhole/catalog"
	"keyhole/gateway"
	"keyhole/objstore"
	"keyhole/objstore/open"
)

// serve runs the gateway until ctx ends or a listener fails.
func (a *app) serve(ctx context.Context, f *serveFlags) (err error) {
	log := a.newLogger(f)
	if err := os.MkdirAll(f.dataDir, 0o750); err != nil {
		return fmt.Errorf("data directory: %w", err)
	}
	// Before anything that takes long or writes: a port in use is the most
	// common reason not to start.
	data, err := net.Listen("tcp", f.listen)
	if err != nil {
		return fmt.Errorf("--listen: %w", err)
	}
	defer data.Close() // a second time when all went well, which does nothing
	admin, err := net.Listen("tcp", f.adminListen)
	if err != nil {
		return fmt.Errorf("--admin-listen: %w", err)
	}
	defer admin.Close()

	registry := newRegistry()
	bucket, err := openBucket(ctx, f, registry)
	if err != nil {
		return fmt.Errorf("--object-store: %w", err)
	}
	if bucket != nil {
		defer func() { err = errors.Join(err, bucket.Close()) }()
	}
	topics, err := catalog.Open(ctx, catalog.Options{
		DataDir:     f.dataDir,
		FS:          vfs.Default,
		Bucket:      bucket,
		Logger:      log,
		Registerer:  registry,
		AutoCreate:  f.dev,
		ReadReplica: f.readReplica,
	})
	if err != nil {
		return fmt.Errorf("data directory %s: %w", f.dataDir, err)
	}
	adminHost, _, _ := net.SplitHostPort(f.adminListen) // checked by complete
	server := gateway.New(gateway.Options{
		Catalog:        topics,
		Logger:         log,
		Registerer:     registry,
		Gatherer:       registry,
		AdminHost:      adminHost,
		MaxHeaderBytes: f.maxHeaderBytes,
		MaxBodyBytes:   f.maxBodyBytes,
		MaxBodiesBytes: f.maxBodiesBytes,
		HeaderTimeout:  f.headerTimeout,
		BodyGrace:      f.bodyGrace,
		BodyRate:       f.bodyMinRate,
		WriteStall:     f.writeStall,
		IdleTimeout:    f.idleTimeout,
		MaxConnections: f.maxConnections,
		DrainWindow:    f.drainWindow,
	})
	server.Start(data, admin)
	f.announce(log, data.Addr(), admin.Addr())

	select {
	case <-ctx.Done():
		log.Info("stopping", "drain_window", f.drainWindow, "timeout", f.shutdownTimeout)
	case err = <-server.Failed():
		log.Error("listener failed, stopping", "err", err)
	case err = <-topics.Failed():
		err = fmt.Errorf("--object-store: %w", err)
		log.Error("nothing to serve and no hope for the object store, stopping", "err", err)
	}
	return errors.Join(err, stop(ctx, f, log, server, topics))
}

// stop drains the listeners and closes the catalog. Requests that had to be cut
// are no failure of ours; a catalog that could not be made durable is one.
func stop(ctx context.Context, f *serveFlags, log *slog.Logger, server *gateway.Server, topics *catalog.Catalog) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), f.shutdownTimeout)
	defer cancel()
	if err := server.Shutdown(ctx); err != nil {
		log.Warn("drained with force", "err", err)
	}
	// The listeners may have used up the time; the data is worth waiting for.
	if err := topics.Close(context.WithoutCancel(ctx)); err != nil {
		return fmt.Errorf("close: %w", err)
	}
	log.Info("stopped")
	return nil
}

func (a *app) newLogger(f *serveFlags) *slog.Logger {
	level, _ := f.level() // checked by complete
	options := &slog.HandlerOptions{Level: level}
	if f.logFormat == "json" {
		// "1s" rather than 1000000000 without a unit, as in the text form.
		options.ReplaceAttr = func(_ []string, at slog.Attr) slog.Attr {
			if at.Value.Kind() == slog.KindDuration {
				at.Value = slog.StringValue(at.Value.Duration().String())
			}
			return at
		}
		return slog.New(slog.NewJSONHandler(a.err, options))
	}
	return slog.New(slog.NewTextHandler(a.err, options))
}

func newRegistry() *prometheus.Registry {
	build := readBuildInfo()
	info := prometheus.NewGauge(prometheus.GaugeOpts{
		Name:        "keyhole_build_info",
		Help:        "Always 1; the labels say what is running.",
		ConstLabels: prometheus.Labels{"version": build.Version, "go": build.Go},
	})
	info.Set(1)
	registry := prometheus.NewRegistry()
	registry.MustRegister(
		info,
		collectors.NewGoCollector(),
		collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}),
	)
	return registry
}

// openBucket gives nil where no object store is configured.
func openBucket(ctx context.Context, f *serveFlags, registry prometheus.Registerer) (objstore.Bucket, error) {
	if f.objectStore == "" {
		return nil, nil
	}
	metrics, err := objstore.NewMetrics(registry)
	if err != nil {
		return nil, err
	}
	return open.Bucket(ctx, f.objectStore, open.Options{CAFile: f.s3CAFile, ReadOnly: f.readReplica, Metrics: metrics})
}

// announce logs where the node listens, in a form that scripts can read, and
// what its operator should know.
func (f *serveFlags) announce(log *slog.Logger, data, admin net.Addr) {
	store := "none"
	if l, err := objstore.ParseURL(f.objectStore); err == nil {
		store = l.String()
	}
	log.Info("serving",
		"data", "http://"+data.String(), "admin", "http://"+admin.String(),
		"data_dir", f.dataDir, "object_store", store, "dev", f.dev, "read_replica", f.readReplica, "version", readBuildInfo().Version)
	if t, ok := admin.(*net.TCPAddr); ok && !t.IP.IsLoopback() {
		log.Warn("the admin listener can be reached from other machines and has no access control", "admin", admin.String())
	}
	if f.objectStore == "" {
		log.Warn("no object store: segments stay on local disk")
	}
}
