package envoy

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func program(t *testing.T, path string) string {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte("#!/bin/sh\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	return path
}

func TestFind(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	flagged := program(t, filepath.Join(dir, "flagged"))
	env := program(t, filepath.Join(dir, "env"))
	onPath := program(t, filepath.Join(dir, "path", "envoy"))
	tools := program(t, filepath.Join(dir, "root", ".tools", "envoy"))
	plain := filepath.Join(dir, "plain")
	if err := os.WriteFile(plain, nil, 0o644); err != nil {
		t.Fatal(err)
	}
	root := filepath.Join(dir, "root")

	tests := []struct {
		name, flag, env, path string
		dirs                  []string
		want, wantErr         string
	}{
		{name: "the flag is first", flag: flagged, env: env, path: onPath, dirs: []string{root}, want: flagged},
		{name: "then the variable", env: env, path: onPath, dirs: []string{root}, want: env},
		{name: "then the path", path: onPath, dirs: []string{root}, want: onPath},
		{name: "then .tools", dirs: []string{dir, root}, want: tools},
		{name: "a wrong flag is an error", flag: plain, env: env, wantErr: "which --envoy names: permission denied: "},
		{name: "a directory is no program", flag: dir, wantErr: "which --envoy names: it is not a file: "},
		{name: "a wrong variable is an error", env: filepath.Join(dir, "none"), path: onPath, wantErr: "which $SLUICE_ENVOY names: no such file or directory: "},
		{name: "a path that cannot be followed says why", flag: filepath.Join(plain, "envoy"), wantErr: "which --envoy names: not a directory: "},
		{name: "nowhere", dirs: []string{dir}, wantErr: "put envoy on the PATH"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			f := finder{env: tt.env, dirs: tt.dirs, lookPath: func(string) (string, error) {
				if tt.path == "" {
					return "", errors.New("not found")
				}
				return tt.path, nil
			}}
			got, err := f.find(tt.flag)
			if tt.wantErr != "" {
				if err == nil || !strings.Contains(err.Error(), tt.wantErr) || strings.Contains(err.Error(), "\n") {
					t.Fatalf("error %v, want one line with %q", err, tt.wantErr)
				}
				return
			}
			if err != nil || got != tt.want {
				t.Errorf("got %q, %v, want %q", got, err, tt.want)
			}
		})
	}
}

func TestVersion(t *testing.T) {
	t.Parallel()
	if got, err := Version(context.Background(), binary(t)); err != nil || got != "1.40.0" {
		t.Errorf("got %q, %v", got, err)
	}
	if got, err := Version(context.Background(), "/bin/echo"); err == nil {
		t.Errorf("echo is no Envoy, got %q", got)
	}
}
