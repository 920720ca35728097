package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"
)

// exitStatus is that of a verb that is a program of its own, which has said why.
type exitStatus int

func (s exitStatus) Error() string { return fmt.Sprintf("exit status %d", int(s)) }

// conformance is the module of the verbs that take minutes to compile, with Caddy and
// an Envoy's protocol; live is their program. It is in the repository alone.
const (
	conformance = "internal/lab/conformance"
	live        = "live"
)

// built builds that program and runs one of its verbs with these arguments.
func built(name string) verb {
	return func(args []string, stdout, stderr io.Writer) error {
		root, err := exec.Command("go", "list", "-m", "-f", "{{.Dir}}", "github.com/endpick/endpick").Output()
		dir := filepath.Join(strings.TrimSpace(string(root)), filepath.FromSlash(conformance))
		if _, missing := os.Stat(dir); err != nil || missing != nil {
			return fmt.Errorf("simulate %s is built from the repository: run it there", name)
		}
		// An interrupt is for the program, which ends in its own way.
		interrupts := make(chan os.Signal, 1)
		signal.Notify(interrupts, os.Interrupt)
		defer signal.Stop(interrupts)
		program := exec.Command("go", append([]string{"run", "-C", dir, "./" + live, name}, args...)...)
		program.Stdout, program.Stderr, program.Env = stdout, stderr, append(os.Environ(), "GOWORK=off")
		err = program.Run()
		if exit, ok := errors.AsType[*exec.ExitError](err); ok && exit.Exited() {
			return exitStatus(exit.ExitCode())
		}
		return err
	}
}
