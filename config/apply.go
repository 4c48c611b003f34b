package config

import (
	"fmt"
	"strings"

	"github.com/spf13/pflag"
)

// EnvPrefix begins the name of every environment variable.
const EnvPrefix = "KEYHOLE_"

// LookupEnv answers the value of an environment variable, as os.LookupEnv.
type LookupEnv func(name string) (string, bool)

// EnvName is the environment variable of a flag.
func EnvName(flag string) string {
	return EnvPrefix + strings.ToUpper(strings.ReplaceAll(flag, "-", "_"))
}

// FileKey is the key of a flag in the configuration file.
func FileKey(flag string) string { return strings.ReplaceAll(flag, "-", "_") }

// ApplyEnv sets every flag that is not set yet and whose variable is present
// and not empty; --help and --version, which are commands rather than settings,
// have none. An error names the variable.
func ApplyEnv(flags *pflag.FlagSet, env LookupEnv) error {
	var first error
	flags.VisitAll(func(f *pflag.Flag) {
		if f.Changed || f.Name == "help" || f.Name == "version" || first != nil {
			return
		}
		v, ok := env(EnvName(f.Name))
		if !ok || v == "" {
			return
		}
		if err := check(f, v, true); err != nil {
			first = fmt.Errorf("environment variable %s must be %s", EnvName(f.Name), describe(f.Value.Type()))
		}
	})
	return first
}

// ApplyFile sets every flag that is not set yet from the settings of the file
// of the given name. The flags in except cannot be set by a file. All settings
// are checked, also those that lose against a flag or the environment.
// Errors are *FileError.
func ApplyFile(flags *pflag.FlagSet, name string, settings []Setting, except ...string) error {
	known := make(map[string]*pflag.Flag)
	flags.VisitAll(func(f *pflag.Flag) { known[FileKey(f.Name)] = f })
	for _, e := range append(except, "help") {
		delete(known, FileKey(e))
	}
	for _, s := range settings {
		f := known[s.Key]
		if f == nil {
			return &FileError{File: name, Line: s.Line, Key: s.Key, Msg: "is not a setting"}
		}
		if want := mismatch(f.Value.Type(), s.Tag); want != "" {
			return &FileError{File: name, Line: s.Line, Key: s.Key, Msg: "must be " + want}
		}
		if err := check(f, s.Value, !f.Changed); err != nil {
			return &FileError{File: name, Line: s.Line, Key: s.Key, Msg: "must be " + describe(f.Value.Type())}
		}
	}
	return nil
}

// check parses v as the flag would and keeps it if keep is set. A value that
// is not kept still has to be right.
func check(f *pflag.Flag, v string, keep bool) error {
	before := f.Value.String()
	if err := f.Value.Set(v); err != nil {
		return err
	}
	if keep {
		f.Changed = true
		return nil
	}
	return f.Value.Set(before)
}

// mismatch says what a flag of the given type wants when YAML's tag does not
// suit it, else "".
func mismatch(flagType, tag string) string {
	ok := false
	switch flagType {
	case "bool":
		ok = tag == "!!bool"
	case "int", "int32", "int64", "uint", "uint32", "uint64":
		ok = tag == "!!int"
	case "duration":
		ok = tag == "!!str" || tag == "!!int"
	default:
		ok = tag == "!!str"
	}
	if ok {
		return ""
	}
	return describe(flagType)
}

func describe(flagType string) string {
	switch flagType {
	case "bool":
		return "true or false"
	case "int", "int32", "int64", "uint", "uint32", "uint64":
		return "a whole number"
	case "duration":
		return "a duration such as 30s"
	case "string":
		return "a string (quote it if it looks like a number)"
	}
	return flagType
}
