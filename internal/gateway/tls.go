package gateway

import (
	"context"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"time"

	"go.uber.org/zap"

	"github.com/sluice-gateway/sluice/internal/beat"
	"github.com/sluice-gateway/sluice/internal/certificates"
	"github.com/sluice-gateway/sluice/internal/condition"
	"github.com/sluice-gateway/sluice/xds"
)

// listenerTLS returns the certificate of the listener as its files are now. It is the zero value
// without tls.
func (e *envoyLink) listenerTLS() xds.TLS {
	if e.certificates == nil {
		return xds.TLS{}
	}
	c := e.certificates.Current(time.Now())
	return xds.TLS{Certificate: c.Cert, Key: c.Key, ClientCA: c.CA}
}

// followCertificates tells Envoy of every change of the certificate of the listener, until ctx
// ends.
func (e *envoyLink) followCertificates(ctx context.Context) error {
	var told *certificates.Content
	var asked time.Time
	for {
		if now := time.Now(); now.Sub(asked) >= askServedEvery && e.server.Status().Certificate == "" {
			asked = now
			e.askServed(ctx)
		}
		if now := e.certificates.Current(time.Now()); now != told {
			if err := e.push(); err != nil {
				e.log.Error("Envoy was not told of a new certificate", zap.Error(err))
			} else {
				told = now
			}
		}
		select {
		case <-ctx.Done():
			return nil
		case <-beat.After(certificates.Recheck):
		}
	}
}

// askServedEvery is how often Envoy is asked with which certificate it serves, while only Envoy
// knows.
const askServedEvery = 10 * time.Second

// askServed asks the Envoys of this host when the certificate ends with which they serve.
func (e *envoyLink) askServed(ctx context.Context) {
	var latest *time.Time
	for _, a := range e.admins() {
		if end, err := a.CertificateEnd(ctx); err == nil && !end.IsZero() && (latest == nil || end.After(*latest)) {
			latest = &end
		}
	}
	e.servedEnd.Store(latest)
}

// certificateWarning is how long before its end a certificate is a condition.
const certificateWarning = 7 * 24 * time.Hour

// certificateConditions tells whether the certificate of the listener can be used, and for how
// long.
func (e *envoyLink) certificateConditions() []condition.Condition {
	if e.certificates == nil {
		return nil
	}
	now := time.Now()
	end := e.certificates.Current(now).Pair.Leaf.NotAfter
	if served := e.servedEnd.Load(); served != nil {
		end = *served
	}
	shown := shownCertificate{subject: "listen", files: "tls", refusing: "clients refuse it",
		end: endOf(e.server.Status().Certificate, end)}
	return shown.conditions(e.certificates.Fault(), now)
}

// endOf returns the end of the certificate of a chain that Envoy has acknowledged. If the chain is
// not known, as after a restart of the gateway, it is otherwise: what Envoy says, or the end of the
// certificate that was read.
func endOf(chain string, otherwise time.Time) time.Time {
	for block, rest := pem.Decode([]byte(chain)); block != nil; block, rest = pem.Decode(rest) {
		if block.Type != "CERTIFICATE" {
			continue
		}
		if served, err := x509.ParseCertificate(block.Bytes); err == nil {
			return served.NotAfter
		}
		break
	}
	return otherwise
}

// tokenConditions tells whether the keys of the identity provider can be read.
func (g *Gateway) tokenConditions() []condition.Condition {
	known, err := g.tokens.Fault()
	if err == nil {
		return nil
	}
	c := condition.Fault(condition.SigningKeysUnavailable, "auth.jwt", "NotReadable",
		fmt.Sprintf("The signing keys of the identity provider cannot be read: %s.", sentence(err.Error())))
	if known {
		c.Severity = condition.Warning
	}
	return []condition.Condition{c}
}

// shownCertificate is a certificate that the gateway or its Envoy shows to others.
type shownCertificate struct {
	// subject is the field that the conditions are about, and files is the section with the files.
	subject, files string
	// refusing says what happens after its end.
	refusing string
	// end is when it ends; zero: there is no certificate.
	end time.Time
}

// conditions are those of a certificate whose files have a fault or none.
func (c shownCertificate) conditions(fault error, now time.Time) []condition.Condition {
	if fault != nil {
		return []condition.Condition{condition.Fault(condition.CertificateFault, c.subject, "NotReadable",
			fmt.Sprintf("The files of %s cannot be used, so the certificate of before stays: %s.", c.files, sentence(fault.Error())))}
	}
	end := c.end.Format(time.RFC3339)
	told := condition.Fault(condition.CertificateFault, c.subject, "EndsSoon", fmt.Sprintf("The certificate of %s ends at %s.", c.subject, end))
	switch left := c.end.Sub(now); {
	case c.end.IsZero():
		return nil
	case left <= 0:
		told.Reason, told.Message = "Ended", fmt.Sprintf("The certificate of %s has ended at %s, so %s.", c.subject, end, c.refusing)
	case left < certificateWarning:
		told.Severity = condition.Warning
	default:
		return nil
	}
	return []condition.Condition{told}
}
