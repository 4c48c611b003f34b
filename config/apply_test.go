package config

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/spf13/pflag"
)

type values struct {
	flags   *pflag.FlagSet
	dir     string
	dev     bool
	bytes   int64
	timeout time.Duration
	config  string
}

func newValues(args ...string) *values {
	v := &values{flags: pflag.NewFlagSet("serve", pflag.ContinueOnError)}
	v.flags.StringVar(&v.dir, "data-dir", "default", "")
	v.flags.BoolVar(&v.dev, "dev", false, "")
	v.flags.Int64Var(&v.bytes, "max-body-bytes", 1, "")
	v.flags.DurationVar(&v.timeout, "shutdown-timeout", time.Second, "")
	v.flags.StringVar(&v.config, "config", "", "")
	v.flags.BoolP("help", "h", false, "")
	if err := v.flags.Parse(args); err != nil {
		panic(err)
	}
	return v
}

func environment(pairs ...string) LookupEnv {
	return func(name string) (string, bool) {
		for _, p := range pairs {
			if value, ok := strings.CutPrefix(p, name+"="); ok {
				return value, true
			}
		}
		return "", false
	}
}

// Every source of a setting against every other: flag, environment, file,
// default, in this order.
func TestPrecedence(t *testing.T) {
	for mask := range 8 {
		var args, env []string
		var file []Setting
		want := "default"
		if mask&1 != 0 {
			file = append(file, Setting{Key: "data_dir", Value: "file", Tag: "!!str", Line: 1})
			want = "file"
		}
		if mask&2 != 0 {
			env = append(env, "KEYHOLE_DATA_DIR=env")
			want = "env"
		}
		if mask&4 != 0 {
			args = append(args, "--data-dir=flag")
			want = "flag"
		}
		v := newValues(args...)
		if err := ApplyEnv(v.flags, environment(env...)); err != nil {
			t.Fatal(err)
		}
		if err := ApplyFile(v.flags, "k.yaml", file, "config"); err != nil {
			t.Fatal(err)
		}
		if v.dir != want {
			t.Errorf("sources %03b: got %q, want %q", mask, v.dir, want)
		}
		if changed := v.flags.Changed("data-dir"); changed != (mask != 0) {
			t.Errorf("sources %03b: Changed is %v", mask, changed)
		}
	}
}

func TestApplyTypes(t *testing.T) {
	v := newValues()
	file, err := Decode("k.yaml", []byte("dev: true\nmax_body_bytes: 4096\nshutdown_timeout: 1m30s\ndata_dir: \"12\"\n"))
	if err != nil {
		t.Fatal(err)
	}
	if err := ApplyFile(v.flags, "k.yaml", file); err != nil {
		t.Fatal(err)
	}
	if !v.dev || v.bytes != 4096 || v.timeout != 90*time.Second || v.dir != "12" {
		t.Errorf("got %+v", v)
	}
}

// case 8-05
func TestApplyFileRefuses(t *testing.T) {
	for _, in := range []string{
		"data_dirr: /x\n", "data-dir: /x\n", "DATA_DIR: /x\n", "config: x.yaml\n", "help: true\n",
		"dev: yes please\n", "dev: 1\n", "dev: \"true\"\n", "data_dir: 12\n", "data_dir: true\n", "data_dir: 1.5\n",
		"max_body_bytes: lots\n", "max_body_bytes: 1.5\n", "max_body_bytes: \"12\"\n", "max_body_bytes: 99999999999999999999\n",
		"shutdown_timeout: 10\n", "shutdown_timeout: soon\n", "shutdown_timeout: true\n",
	} {
		t.Run(in, func(t *testing.T) {
			file, err := Decode("k.yaml", []byte("# first line\n"+in))
			if err != nil {
				t.Fatal(err)
			}
			v := newValues()
			err = ApplyFile(v.flags, "k.yaml", file, "config")
			var fe *FileError
			if !errors.As(err, &fe) {
				t.Fatalf("got %v, want a *FileError", err)
			}
			key, value, _ := strings.Cut(strings.TrimSpace(in), ": ")
			if fe.Key != key || fe.Line != 2 {
				t.Errorf("got key %q, line %d; want %q, 2", fe.Key, fe.Line, key)
			}
			// case 8-21: what stands in the wrong place may be a secret.
			if len(value) > 4 && strings.Contains(err.Error(), value) {
				t.Errorf("the value is repeated: %v", err)
			}
		})
	}
}

// A setting that loses is checked all the same, and stays without effect.
func TestLosingSettingIsChecked(t *testing.T) {
	v := newValues("--max-body-bytes=7")
	if err := ApplyFile(v.flags, "k.yaml", []Setting{{Key: "max_body_bytes", Value: "8", Tag: "!!int", Line: 1}}); err != nil || v.bytes != 7 {
		t.Errorf("got %d, %v", v.bytes, err)
	}
	if err := ApplyFile(v.flags, "k.yaml", []Setting{{Key: "max_body_bytes", Value: "eight", Tag: "!!str", Line: 1}}); err == nil || v.bytes != 7 {
		t.Errorf("got %d, %v", v.bytes, err)
	}
}

func TestApplyEnv(t *testing.T) {
	v := newValues()
	if err := ApplyEnv(v.flags, environment("KEYHOLE_DATA_DIR=", "KEYHOLE_HELP=true", "KEYHOLE_OTHER=x")); err != nil || v.dir != "default" {
		t.Errorf("got %q, %v; an empty variable counts as absent", v.dir, err)
	}
	err := ApplyEnv(v.flags, environment("KEYHOLE_MAX_BODY_BYTES=geheim"))
	if err == nil || !strings.Contains(err.Error(), "KEYHOLE_MAX_BODY_BYTES") || strings.Contains(err.Error(), "geheim") {
		t.Errorf("got %v, want an error that names the variable and not the value", err)
	}
}
