package config

// Usage says how long the ledger keeps what tenants have used.
type Usage struct {
	// HourlyDays is the number of days for which usage is kept by the hour. Older usage is kept by
	// the day. Default 90.
	HourlyDays int `yaml:"hourly_days" default:"90" min:"1" max:"3650"`
	// DailyDays is the number of days for which usage is kept at all. Default 1095.
	DailyDays int `yaml:"daily_days" default:"1095" min:"1" max:"36500"`
}

// Prices are the prices of a model, each for a million tokens, in any one currency.
type Prices struct {
	// Prompt is the price of prompt tokens that the engine did not have in its cache. Default 0.
	Prompt float64 `yaml:"prompt" min:"0"`
	// Cached is the price of prompt tokens that the engine had in its cache. Default: that of
	// prompt.
	Cached *float64 `yaml:"cached" min:"0"`
	// Completion is the price of completion tokens. Default 0.
	Completion float64 `yaml:"completion" min:"0"`
}
