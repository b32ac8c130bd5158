// Package local finds ports of this machine and waits for servers on it. The programs under
// internal/bench use it, which start what they measure.
package local

import (
	"fmt"
	"net"
	"net/http"
	"time"
)

// FreePort returns a port that is free now.
func FreePort() (int, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return 0, err
	}
	defer l.Close()
	return l.Addr().(*net.TCPAddr).Port, nil
}

// patience is how long a server may take to start. Under callgrind an Envoy takes most of a minute.
const patience = 3 * time.Minute

// WaitForOK waits until the URL answers 200, up to three minutes.
func WaitForOK(url string) error {
	for until := time.Now().Add(patience); time.Now().Before(until); {
		if resp, err := http.Get(url); err == nil {
			resp.Body.Close()
			if resp.StatusCode == http.StatusOK {
				return nil
			}
		}
		time.Sleep(50 * time.Millisecond)
	}
	return fmt.Errorf("%s did not answer 200 within %v", url, patience)
}
