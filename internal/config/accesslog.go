package config

// AccessLogTo says where the access log goes.
type AccessLogTo string

// The sinks of the access log that have rules of their own. The others are stdout and stderr.
const (
	// AccessLogAuto is stdout, and on a terminal lines of failed requests on the console.
	AccessLogAuto AccessLogTo = "auto"
	AccessLogOff  AccessLogTo = "off"
	AccessLogFile AccessLogTo = "file"
	// AccessLogOTLP is a collector of OpenTelemetry.
	AccessLogOTLP AccessLogTo = "otlp"
)

// AccessLog says where the line of each finished request goes. The line tells who called, what for
// and how long it took. It never contains prompts or answers.
type AccessLog struct {
	// To is where lines go: stdout, stderr, file, otlp (a collector of OpenTelemetry), off, or
	// auto. With auto they go to stdout; on a terminal the console shows failed requests alone.
	// Default auto, or off if log_requests is false.
	To AccessLogTo `yaml:"to" default:"auto" oneof:"auto,off,stdout,stderr,file,otlp"`
	// Path is the file of to: file. A relative path counts from the folder of the configuration
	// file. A file that was moved away is made again within a second. Default: empty.
	Path string `yaml:"path"`
	// MaxSize is the size from which the file is renamed to path.1, and a new one is begun. 0 means
	// never. Default 100MiB.
	MaxSize Size `yaml:"max_size" default:"100MiB"`
	// MaxFiles is how many renamed files are kept: path.1 is the newest. Default 5.
	MaxFiles int `yaml:"max_files" default:"5" min:"0" max:"1000"`
	// Sample is the share of requests that have a line, from 0 to 1. A failed request always has
	// one. Default 1.
	Sample float64 `yaml:"sample" default:"1" min:"0" form:"share"`
	// Endpoint is the URL of the collector of to: otlp, by OTLP over HTTP, such as
	// http://127.0.0.1:4318. Default: tracing.endpoint.
	Endpoint string `yaml:"endpoint" form:"url"`
}

// checkAccessLog checks the section access_log, and takes to from log_requests if that is set.
func (k *checker) checkAccessLog() {
	a, at, short := &k.config.AccessLog, path{"access_log"}, path{"log_requests"}
	if !k.config.LogRequests {
		if k.isSet(at.field("to")) && k.valid(short) {
			k.faultf(short, "false is another name of access_log.to: off, and to is set too: remove one of them")
		}
		a.To = AccessLogOff
	}
	k.checkShare(at.field("sample"), a.Sample)
	switch {
	case a.To == AccessLogFile && a.Path == "":
		k.faultf(at, "to: file needs path, the file of the access log")
	case a.To != AccessLogFile && a.Path != "":
		k.faultf(at.field("path"), "is only for to: file, and to is %s", a.To)
	case a.Path != "":
		a.Path = k.absolutePath(a.Path)
	}
	if a.To == AccessLogOTLP && a.Endpoint == "" && k.config.Tracing != nil {
		a.Endpoint = k.config.Tracing.Endpoint
	}
	switch {
	case a.To == AccessLogOTLP && a.Endpoint == "":
		k.faultf(at, "to: otlp needs endpoint, the URL of the collector, or tracing.endpoint")
	case a.To != AccessLogOTLP && a.Endpoint != "":
		k.faultf(at.field("endpoint"), "is only for to: otlp, and to is %s", a.To)
	}
	k.checkURL(at.field("endpoint"), a.Endpoint)
}
