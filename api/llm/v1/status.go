package llmv1

import (
	"errors"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/protoadapt"
	"google.golang.org/protobuf/types/known/durationpb"
)

// CodeOf returns the gRPC code that stands for an HTTP status.
func CodeOf(httpStatus int32) codes.Code {
	switch httpStatus {
	case 401:
		return codes.Unauthenticated
	case 403:
		return codes.PermissionDenied
	case 404:
		return codes.NotFound
	case 408, 504:
		return codes.DeadlineExceeded
	case 409:
		return codes.AlreadyExists
	case 413, 429:
		return codes.ResourceExhausted
	case 499:
		return codes.Canceled
	case 502, 503:
		return codes.Unavailable
	}
	if httpStatus >= 400 && httpStatus < 500 {
		return codes.InvalidArgument
	}
	return codes.Internal
}

// HTTPStatusOf returns the HTTP status that stands for a gRPC code, for a status that has no Error
// among its details.
func HTTPStatusOf(code codes.Code) int32 {
	switch code {
	case codes.InvalidArgument, codes.FailedPrecondition, codes.OutOfRange:
		return 400
	case codes.Unauthenticated:
		return 401
	case codes.PermissionDenied:
		return 403
	case codes.NotFound:
		return 404
	case codes.AlreadyExists, codes.Aborted:
		return 409
	case codes.ResourceExhausted:
		return 429
	case codes.Canceled:
		return 499
	case codes.Unavailable:
		return 503
	case codes.DeadlineExceeded:
		return 504
	}
	return 500
}

// Status returns the status that ends a stream with this error. Its details are the error itself
// and, if a retry may help, RetryInfo.
func (x *Error) Status() *status.Status {
	s := status.New(CodeOf(x.GetCode()), x.GetMessage())
	details := []protoadapt.MessageV1{protoadapt.MessageV1Of(x)}
	if x.GetRetryable() {
		delay := durationpb.New(time.Duration(x.GetRetryAfterMs()) * time.Millisecond)
		details = append(details, protoadapt.MessageV1Of(&errdetails.RetryInfo{RetryDelay: delay}))
	}
	if detailed, err := s.WithDetails(details...); err == nil {
		return detailed
	}
	return s // the status is OK, which no error has, or a text is not UTF-8
}

// ErrorOf returns what the error of a call says: the Error among its details, or else as much as
// the status tells. told is true if there was an Error among the details. The error then comes from
// the server, and not from a connection that failed. e is nil if err is nil or no status.
func ErrorOf(err error) (e *Error, told bool) {
	var s interface{ GRPCStatus() *status.Status }
	if err == nil || !errors.As(err, &s) {
		return nil, false
	}
	st := s.GRPCStatus()
	e = &Error{Code: HTTPStatusOf(st.Code()), Message: st.Message()}
	for _, detail := range st.Details() {
		switch d := detail.(type) {
		case *Error:
			return d, true
		case *errdetails.RetryInfo:
			e.Retryable, e.RetryAfterMs = true, d.GetRetryDelay().AsDuration().Milliseconds()
		}
	}
	return e, false
}
