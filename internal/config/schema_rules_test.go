package config

import (
	"reflect"

	"github.com/sluice-gateway/sluice/engines"
)

// has returns a schema of objects that have all of these fields.
func has(fields ...string) object {
	list := make([]any, len(fields))
	for i, field := range fields {
		list[i] = field
	}
	return object{"required": list}
}

// absentOr returns a schema of objects whose field is absent or has the value.
func absentOr(field string, value any) object {
	return object{"properties": object{field: object{"const": value}}}
}

// with returns a schema of objects whose field has the value.
func with(field string, value any) object {
	s := absentOr(field, value)
	s["required"] = []any{field}
	return s
}

// without returns a schema of objects that have none of these fields.
func without(fields ...string) object {
	properties := object{}
	for _, field := range fields {
		properties[field] = false
	}
	return object{"properties": properties}
}

// when returns a schema of objects that obey then if they obey condition.
func when(condition, then object) object { return object{"if": condition, "then": then} }

// both returns a schema of objects that obey each of several schemas.
func both(all ...any) object { return object{"allOf": all} }

// one returns a schema of objects that obey at least one of several schemas.
func one(some ...any) object { return object{"anyOf": some} }

// notEmpty returns a schema of objects in which these lists are absent or not empty.
func notEmpty(fields ...string) object {
	properties := object{}
	for _, field := range fields {
		properties[field] = object{"minItems": 1}
	}
	return object{"properties": properties}
}

// rulesOf returns what the schema says about several fields of a struct together. The checks of
// this package say the same, and more.
func rulesOf(t reflect.Type) []any {
	switch t {
	case reflect.TypeFor[Config]():
		return append(configRules(), engineRules()...)
	case reflect.TypeFor[Model]():
		return modelRules()
	case reflect.TypeFor[ScaleTarget]():
		return []any{object{"oneOf": []any{has("running"), has("ttft")}}}
	case reflect.TypeFor[Resources]():
		part, whole := object{"maximum": 1}, object{"multipleOf": 1, "maximum": maxGPUs}
		return []any{object{"properties": object{"gpu": one(part, whole)}}}
	case reflect.TypeFor[Routing]():
		return routingRules()
	case reflect.TypeFor[Stream]():
		return []any{when(with("mode", string(StreamNative)), without(managedFields()...))}
	case reflect.TypeFor[Registry]():
		return []any{
			when(with("kind", string(Directory)), both(has("path"), without("cache", "cache_dir", "endpoint", "fetch", "token_env"))),
			when(with("kind", string(HuggingFace)), without("path", "claim")),
		}
	case reflect.TypeFor[Cache]():
		return []any{one(has("claim"), has("size")), when(has("claim"), without("size", "storage_class"))}
	case reflect.TypeFor[AccessLog]():
		return []any{object{"if": with("to", string(AccessLogFile)), "then": has("path"), "else": without("path")},
			when(object{"not": with("to", string(AccessLogOTLP))}, without("endpoint"))}
	case reflect.TypeFor[Upstream]():
		return []any{when(object{"properties": object{"url": object{"pattern": "^http://"}}}, without("ca_file", "insecure_skip_verify"))}
	case reflect.TypeFor[Control]():
		return []any{object{"if": has("listen"), "then": has("cert", "key"),
			"else": without("cert", "key", "client_ca", "allowed", "addresses", "advertise", "server_name")}}
	case reflect.TypeFor[Redis]():
		plain := object{"properties": object{"url": object{"pattern": "^redis://"}}}
		return []any{has("url"), object{"properties": object{"url": object{"minLength": 1}}}, when(plain, without("cert", "key", "ca", "server_name")), when(has("cert"), has("key")), when(has("key"), has("cert"))}
	case reflect.TypeFor[Sentinel]():
		return []any{object{"properties": object{"master": object{"minLength": 1}}}, when(has("username"), has("password"))}
	case reflect.TypeFor[AdminAuth]():
		return []any{one(has("tokens"), has("trusted_header"))}
	case reflect.TypeFor[TrustedHeader]():
		return []any{notEmpty("from")}
	case reflect.TypeFor[Moderation]():
		return []any{one(has("literals"), has("patterns"), has("hook"))}
	case reflect.TypeFor[Pool]():
		return []any{notEmpty("models")}
	case reflect.TypeFor[Engine]():
		return []any{notEmpty("versions")}
	case reflect.TypeFor[EngineVersion]():
		return []any{notEmpty("tasks", "command")}
	}
	return nil
}

// configRules are the rules of the whole file.
func configRules() []any {
	rules := []any{when(has("peers"), has("redis")),
		object{"properties": object{"upstreams": object{"items": without("model")}}}}
	for _, launcher := range []engines.Launcher{engines.Kubernetes, engines.Ray} {
		some := object{"properties": object{"models": object{"contains": with("launcher", string(launcher))}}, "required": []any{"models"}}
		rules = append(rules, when(some, has(string(launcher)))) // the section has the name of the launcher
	}
	return rules
}

// modelRules are the rules of a model, which depend on its launcher.
func modelRules() []any {
	launched := []any{has("engine"), without("upstreams")}
	rules := []any{
		notEmpty("unhealthy_on"),
		object{"not": object{"properties": object{"cold_start": has("wait")}, "required": []any{"cold_start", "cold_start_timeout"}}},
		when(absentOr("launcher", string(engines.Local)), both(append(launched, without(refusedFields(engines.Local)...))...)),
	}
	for _, launcher := range []engines.Launcher{engines.Kubernetes, engines.Ray} {
		rules = append(rules, when(with("launcher", string(launcher)), both(append(launched, without(refusedFields(launcher)...))...)))
	}
	servers := object{"required": []any{"upstreams"}, "properties": object{"upstreams": object{"minItems": 1, "items": without("join", "models")}}}
	rules = append(rules, when(with("launcher", string(engines.Upstream)), both(servers, without(refusedFields(engines.Upstream)...))))
	limits := object{"properties": object{"admission": without(replicaLimits()...)}}
	return append(rules, when(with("launcher", string(engines.None)), both(limits, without(refusedFields(engines.None)...))))
}

// routingRules are the rules of Routing, which depend on the strategy.
func routingRules() []any {
	var rules []any
	for _, row := range strategyRows() {
		if !row.usesRing {
			rules = append(rules, when(with("strategy", string(row.strategy)), without(ringFields()...)))
		}
	}
	return rules
}
