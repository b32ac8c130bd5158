package admission_test

import (
	"testing"

	"github.com/sluice-gateway/sluice/admission"
	"github.com/sluice-gateway/sluice/admission/admissiontest"
)

func TestContract(t *testing.T) {
	t.Parallel()
	admissiontest.Run(t, func(*testing.T) *admission.Controller { return admission.New(admission.Config{}) })
}

func TestContractOfSharedState(t *testing.T) {
	t.Parallel()
	admissiontest.Run(t, func(*testing.T) *admission.Controller {
		return admission.New(admission.Config{Shared: newFakeStore().newShared()})
	})
}
