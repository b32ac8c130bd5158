package admission_test

import (
	"context"
	"errors"
	"fmt"

	"github.com/sluice-gateway/sluice/admission"
)

func Example() {
	ctx := context.Background()
	control := admission.New(admission.Config{})
	control.SetLimits("chat", admission.Limits{MaxConcurrent: 1, TokensPerMinute: 6000, MaxQueue: -1})

	lease, err := control.Admit(ctx, admission.Request{Model: "chat", Tokens: 500})
	fmt.Println("first:", err)

	_, err = control.Admit(ctx, admission.Request{Model: "chat", Tokens: 500})
	var refused *admission.Refused
	if errors.As(err, &refused) {
		fmt.Println("second:", refused.Reason)
	}

	lease.Release()
	_, err = control.Admit(ctx, admission.Request{Model: "chat", Tokens: 5000})
	fmt.Println("third:", err)

	_, err = control.Admit(ctx, admission.Request{Model: "chat", Tokens: 10_000})
	fmt.Println("too large for ever:", errors.Is(err, admission.ErrNeverFits))
	// Output:
	// first: <nil>
	// second: queue is full
	// third: <nil>
	// too large for ever: true
}
