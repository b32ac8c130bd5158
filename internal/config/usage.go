package config

// Usage says how long the ledger keeps what tenants have used.
type Usage struct {
	// HourlyDays is the number of days for which usage is kept by the hour. Older usage is kept by
	// the day. Default 90.
	HourlyDays int `yaml:"hourly_days" default:"90" min:"1" max:"3650"`
	// DailyDays is the number of days for which usage is kept at all. Default 1095.
	DailyDays int `yaml:"daily_days" default:"1095" min:"1" max:"36500"`
}
