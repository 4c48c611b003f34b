package main

import (
	"errors"
	"fmt"
	"log/slog"
	"math"
	"net"
	"path/filepath"
	"time"

	"github.com/spf13/cobra"

	"keyhole/config"
	"keyhole/objstore"
)

// serveFlags are the settings of serve, each a flag, an environment variable
// and a key of the YAML file.
type serveFlags struct {
	config      string
	dataDir     string
	objectStore string
	listen      string
	adminListen string
	dev         bool
	readReplica bool
	logLevel    string
	logFormat   string
	s3CAFile    string

	maxHeaderBytes int
	maxBodyBytes   int64
	maxBodiesBytes int64
	headerTimeout  time.Duration
	bodyGrace      time.Duration
	bodyMinRate    int64
	writeStall     time.Duration
	idleTimeout    time.Duration
	maxConnections int

	drainWindow     time.Duration
	shutdownTimeout time.Duration
}

// devDataDir is where --dev keeps its data unless told otherwise, devStore the
// embedded object store in it.
const (
	devDataDir = "keyhole-data"
	devStore   = "object-store"
)

func (a *app) newServe() *cobra.Command {
	var f serveFlags
	cmd := &cobra.Command{
		Use:   "serve",
		Short: "Run the gateway",
		Long: `Runs the gateway until SIGTERM or SIGINT; then readiness goes off, requests are
served on for --drain-window, those in flight finish, everything is made durable,
and it exits with 0. A second signal aborts.

Every flag has an environment variable (--data-dir: KEYHOLE_DATA_DIR) and a key
in the YAML file of --config (data_dir). A flag wins over the environment, that
over the file. Credentials of the object store come from the usual environment
variables (AWS_ACCESS_KEY_ID …), shared files or roles, never from the URL.

--dev is all that a laptop needs: an object store embedded in the data directory,
all switches on, topics made on their first use with small segments. The data
directory is ./keyhole-data unless given, the store is the folder object-store in
it: check, and a read replica, take it as --object-store
file:///…/keyhole-data/object-store.

--read-replica answers lookups from a bucket that another gateway writes, and writes
nothing into it: any number of them may run beside one writer. Its data directory holds
indexes and copies, is its own, and may be deleted while it is stopped; a new one begins
with all switches on. What the writer has not uploaded yet it does not see.`,
		Example: `  keyhole serve --dev
  keyhole serve --data-dir /var/lib/keyhole \
      --object-store 's3://bucket/prefix?endpoint=http://127.0.0.1:9000&region=us-east-1'
  keyhole serve --read-replica --data-dir /var/lib/keyhole-replica --object-store s3://bucket/prefix
  keyhole serve --config /etc/keyhole.yaml`,
		Args: exactly(0, ""),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := f.complete(cmd); err != nil {
				return err
			}
			return a.serve(cmd.Context(), &f)
		},
	}
	fl := cmd.Flags()
	fl.StringVar(&f.config, "config", "", "YAML file with settings")
	fl.StringVar(&f.dataDir, "data-dir", "", "directory for local segments, indexes and settings (required without --dev)")
	fl.StringVar(&f.objectStore, "object-store", "", "s3://bucket/prefix?endpoint=…&region=…&path_style=true&client=aws|minio, or file:///dir; none: nothing is uploaded or evicted")
	fl.StringVar(&f.listen, "listen", "127.0.0.1:8082", "address of the data listener")
	fl.StringVar(&f.adminListen, "admin-listen", "127.0.0.1:9644", "address of the admin listener, which has no access control")
	fl.BoolVar(&f.dev, "dev", false, "everything a laptop needs, see above")
	fl.BoolVar(&f.readReplica, "read-replica", false, "only answer what the object store has, where another gateway writes it, see above")
	fl.StringVar(&f.logLevel, "log-level", "info", "debug, info, warn or error")
	fl.StringVar(&f.logFormat, "log-format", "text", "text or json")
	fl.StringVar(&f.s3CAFile, "s3-ca-file", "", "PEM file of certificate authorities to trust besides the system's, for the object store")
	fl.IntVar(&f.maxHeaderBytes, "max-header-bytes", 256<<10, "largest request head")
	fl.Int64Var(&f.maxBodyBytes, "max-body-bytes", 64<<20, "largest request body")
	fl.Int64Var(&f.maxBodiesBytes, "max-bodies-bytes", 256<<20, "memory of all request bodies in flight; beyond it writes answer 503")
	fl.DurationVar(&f.headerTimeout, "header-timeout", 10*time.Second, "how long a client may take for a request head")
	fl.DurationVar(&f.bodyGrace, "body-grace", 10*time.Second, "how long a body may take whatever its speed")
	fl.Int64Var(&f.bodyMinRate, "body-min-rate", 1024, "bytes a second that a body must keep after that")
	fl.DurationVar(&f.writeStall, "write-stall-timeout", time.Minute, "a client that takes no byte of an answer for so long is cut")
	fl.DurationVar(&f.idleTimeout, "idle-timeout", 3*time.Minute, "how long a connection may idle between requests")
	fl.IntVar(&f.maxConnections, "max-connections", 4096, "connections open at once on each listener; one more is answered 503 and closed")
	fl.DurationVar(&f.drainWindow, "drain-window", time.Second, "how long requests are served after readiness went off at a stop; longer than the probe interval of a load balancer (--dev: 0s)")
	fl.DurationVar(&f.shutdownTimeout, "shutdown-timeout", 30*time.Second, "how long a stop may take, drain window included, before requests in flight are cut")
	return cmd
}

// complete fills in what the file and --dev say, and checks everything that can
// be checked without touching disk or network.
func (f *serveFlags) complete(cmd *cobra.Command) error {
	if f.config != "" {
		settings, err := config.ReadFile(f.config)
		if err == nil {
			err = config.ApplyFile(cmd.Flags(), f.config, settings, "config")
		}
		if err != nil {
			return &usageError{err}
		}
	}
	if f.dev && f.readReplica {
		return misused("--read-replica and --dev exclude each other: a replica reads what another gateway writes")
	}
	if f.dev {
		if err := f.fillDev(cmd); err != nil {
			return err
		}
	}
	switch {
	case f.dataDir == "" && f.readReplica:
		return misused("--data-dir is required: a read replica keeps its indexes there")
	case f.dataDir == "":
		return misused("--data-dir is required (or --dev)")
	}
	if f.readReplica && f.objectStore == "" {
		return misused("--read-replica needs --object-store: there is nothing else to read")
	}
	if f.objectStore != "" {
		if _, err := objstore.ParseURL(f.objectStore); err != nil {
			return misused("--object-store: %w", err)
		}
	}
	for name, addr := range map[string]string{"listen": f.listen, "admin-listen": f.adminListen} {
		if _, _, err := net.SplitHostPort(addr); err != nil {
			return misused("--%s must be an address with a port", name)
		}
	}
	if _, err := f.level(); err != nil {
		return err
	}
	if f.logFormat != "text" && f.logFormat != "json" {
		return misused("--log-format must be text or json")
	}
	return f.checkLimits()
}

func (f *serveFlags) fillDev(cmd *cobra.Command) error {
	if f.dataDir == "" {
		f.dataDir = devDataDir
	}
	if f.objectStore == "" {
		dir, err := filepath.Abs(filepath.Join(f.dataDir, devStore))
		if err != nil {
			return err
		}
		f.objectStore = objstore.Location{Dir: dir}.String()
	}
	if !cmd.Flags().Changed("drain-window") {
		f.drainWindow = 0
	}
	return nil
}

func (f *serveFlags) checkLimits() error {
	var errs []error
	positive := func(flag string, n int64) {
		if n <= 0 {
			errs = append(errs, fmt.Errorf("--%s must be more than 0", flag))
		}
	}
	positive("max-header-bytes", int64(f.maxHeaderBytes))
	positive("max-body-bytes", f.maxBodyBytes)
	positive("max-bodies-bytes", f.maxBodiesBytes)
	positive("header-timeout", int64(f.headerTimeout))
	positive("body-grace", int64(f.bodyGrace))
	positive("body-min-rate", f.bodyMinRate)
	positive("write-stall-timeout", int64(f.writeStall))
	positive("idle-timeout", int64(f.idleTimeout))
	positive("max-connections", int64(f.maxConnections))
	positive("shutdown-timeout", int64(f.shutdownTimeout))
	if f.drainWindow < 0 || f.drainWindow >= f.shutdownTimeout {
		errs = append(errs, fmt.Errorf("--drain-window must not be negative and must be shorter than --shutdown-timeout"))
	}
	if f.maxBodiesBytes < f.maxBodyBytes {
		errs = append(errs, fmt.Errorf("--max-bodies-bytes must not be less than --max-body-bytes"))
	}
	if len(errs) > 0 {
		return &usageError{errors.Join(errs...)}
	}
	return nil
}

func (f *serveFlags) level() (slog.Level, error) {
	var l slog.Level
	switch f.logLevel {
	case "debug", "info", "warn", "error":
		return l, l.UnmarshalText([]byte(f.logLevel))
	}
	return math.MaxInt, misused("--log-level must be debug, info, warn or error")
}
