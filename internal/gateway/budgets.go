package gateway

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/sluice-gateway/sluice/authz"
	"github.com/sluice-gateway/sluice/internal/admin"
	"github.com/sluice-gateway/sluice/internal/condition"
	"github.com/sluice-gateway/sluice/internal/config"
	"github.com/sluice-gateway/sluice/internal/headers"
	"github.com/sluice-gateway/sluice/internal/keys"
	"github.com/sluice-gateway/sluice/internal/openai"
	"github.com/sluice-gateway/sluice/internal/usage"
)

// spendingBudgets returns the budgets of the tenants and keys of the file, and of the keys of run
// time. It omits those of keys whose tenant is not in the file, because such keys are refused.
func spendingBudgets(c *config.Config, made []keys.Key) []usage.Budget {
	var all []usage.Budget
	add := func(b keys.Budget, tenant, key string, expires time.Time) {
		all = append(all, usage.Budget{Tenant: tenant, Key: key, Per: usage.Span(b.Per), Of: usage.Measure(b.Of), Soft: b.Soft, Hard: b.Hard,
			Expires: expires.UTC()})
	}
	tenants := map[string]bool{}
	for _, t := range c.Tenants {
		tenants[t.Name] = true
		for _, b := range t.Budgets {
			add(keys.Budget(b), t.Name, "", time.Time{})
		}
		for _, k := range t.Keys {
			for _, b := range k.Budgets {
				add(keys.Budget(b), t.Name, authz.KeyName(t.Name, authz.FileKeyID(k.Hash)), k.Expires)
			}
		}
	}
	for _, k := range made {
		for _, b := range k.Budgets {
			if tenants[k.Tenant] {
				add(b, k.Tenant, authz.KeyName(k.Tenant, k.ID), k.Expires)
			}
		}
	}
	return all
}

// budgetsInForce returns how far the budgets are used that can refuse a request at a time. Those of
// expired keys cannot.
func budgetsInForce(all []usage.Standing, now time.Time) []usage.Standing {
	return slices.DeleteFunc(all, func(s usage.Standing) bool { return s.HasEnded(now) })
}

// budgetOf says which budgets of a caller are reached, and refuses the request if one is used up.
func (l *ledger) budgetOf(t *authz.Tenant) (reached string, fault *openai.Error) {
	tenant := l.Verdict(t.Name, "")
	var key *usage.Verdict
	if t.Key != "" {
		key = l.Verdict(t.Name, t.Key)
	}
	if tenant == nil && key == nil {
		return "", nil
	}
	return budgetAnswer(tenant, key, l.Now())
}

// refuseByBudget is budgetOf for callers whose responses have no headers.
func (l *ledger) refuseByBudget(t *authz.Tenant) *openai.Error {
	_, fault := l.budgetOf(t)
	return fault
}

// budgetAnswer returns what the verdicts about a tenant and its key mean for a request at a time.
func budgetAnswer(tenant, key *usage.Verdict, now time.Time) (reached string, fault *openai.Error) {
	var texts []string
	var worst *usage.Standing
	for _, v := range []*usage.Verdict{tenant, key} {
		if v == nil {
			continue
		}
		for i := range v.Reached {
			texts = append(texts, budgetText(&v.Reached[i]))
		}
		if v.Hard != nil && now.Before(v.Hard.Resets) && (worst == nil || v.Hard.Resets.After(worst.Resets)) {
			worst = v.Hard
		}
	}
	reached = strings.Join(texts, ", ")
	if worst == nil {
		return reached, nil
	}
	return reached, &openai.Error{Code: openai.CodeInsufficientQuota, RetryAfter: worst.Resets.Sub(now),
		Message: fmt.Sprintf("%s is used up: %s of %s. It begins anew at %s.", budgetName(worst), grouped(worst.Used), amount(worst, worst.Hard),
			worst.Resets.Format(time.RFC3339)),
		Header: map[string]string{headers.Budget: reached}}
}

// budgetName names a budget at the beginning of a sentence.
func budgetName(s *usage.Standing) string {
	whose := "tenant " + s.Tenant
	if s.Key != "" {
		whose = "API key " + s.Key
	}
	return fmt.Sprintf("The budget of %s for this %s", whose, s.Per)
}

// amount writes a number of tokens, or a cost.
func amount(s *usage.Standing, v float64) string {
	if s.Of == usage.OfTokens {
		return grouped(v) + " tokens"
	}
	return grouped(v)
}

// grouped writes a number with a comma before each three digits: 102,556.
func grouped(v float64) string {
	text := strconv.FormatFloat(v, 'f', -1, 64)
	whole, _, _ := strings.Cut(text, ".")
	for at := len(whole) - 3; at > 0; at -= 3 {
		text = text[:at] + "," + text[at:]
	}
	return text
}

// budgetText is a budget in the header headers.Budget.
func budgetText(s *usage.Standing) string {
	whose := "tenant"
	if s.Key != "" {
		whose = "key"
	}
	text := fmt.Sprintf("%s;per=%s;of=%s;used=%s", whose, s.Per, s.Of, strconv.FormatFloat(s.Used, 'f', -1, 64))
	if s.Soft > 0 {
		text += ";soft=" + strconv.FormatFloat(s.Soft, 'f', -1, 64)
	}
	if s.Hard > 0 {
		text += ";hard=" + strconv.FormatFloat(s.Hard, 'f', -1, 64)
	}
	return text + ";resets=" + s.Resets.Format(time.RFC3339)
}

// maxKeyConditions bounds the budgets of keys that have a condition each. Thousands of keys may
// have used up what they may use in a day, and the metrics have few conditions.
const maxKeyConditions = 100

// keyBudgetAction is what to do about a budget of a key. A key of run time keeps its budgets.
const keyBudgetAction = "Look at `sluice usage`. Wait until the day or month ends. Or raise the budget of a key of the file there; " +
	"in the place of a key of run time make another one."

// budgetConditions lists the budgets of which a bound is reached: those of all tenants and of some
// keys. One condition tells of the other keys.
func budgetConditions(standings []usage.Standing) []condition.Condition {
	var all []condition.Condition
	keys := 0
	for i := range standings {
		s := &standings[i]
		if s.Level == usage.Within {
			continue
		}
		if s.Key != "" {
			if keys++; keys > maxKeyConditions {
				continue
			}
		}
		c := budgetCondition(s)
		if s.Key != "" {
			c.Action = keyBudgetAction
		}
		all = append(all, c)
	}
	if more := keys - maxKeyConditions; more > 0 {
		all = append(all, condition.Fault(condition.BudgetReached, "other keys", "OtherKeys",
			fmt.Sprintf("%d further budgets of keys have reached their soft or hard bound.", more)))
	}
	return all
}

// budgetCondition tells that a bound of a budget is reached.
func budgetCondition(s *usage.Standing) condition.Condition {
	subject := "tenant " + s.Tenant
	if s.Key != "" {
		subject = "key " + s.Key
	}
	subject += fmt.Sprintf(", %s per %s", s.Of, s.Per)
	if s.Level == usage.SoftReached {
		return condition.Fault(condition.BudgetReached, subject, "Soft",
			fmt.Sprintf("%s is at %s. Its soft bound is %s.", budgetName(s), amount(s, s.Used), amount(s, s.Soft)))
	}
	return condition.Fault(condition.BudgetReached, subject, "Hard",
		fmt.Sprintf("%s is used up: %s of %s. Requests are refused until %s.", budgetName(s), grouped(s.Used), amount(s, s.Hard),
			s.Resets.Format(time.RFC3339)))
}

// budgetUses returns how far budgets of tenants and of their keys are used, by tenant.
func budgetUses(all []usage.Standing) map[string][]admin.BudgetUse {
	uses := map[string][]admin.BudgetUse{}
	for _, s := range all {
		uses[s.Tenant] = append(uses[s.Tenant], budgetUse(s))
	}
	return uses
}

// keyBudgetUses returns how far the budgets of keys are used, by the names of the keys.
func keyBudgetUses(all []usage.Standing) map[string][]admin.BudgetUse {
	uses := map[string][]admin.BudgetUse{}
	for _, s := range all {
		if s.Key != "" {
			uses[s.Key] = append(uses[s.Key], budgetUse(s))
		}
	}
	return uses
}

// budgetUse returns a budget as the API shows it.
func budgetUse(s usage.Standing) admin.BudgetUse {
	return admin.BudgetUse{Key: s.Key, Per: string(s.Per), Of: string(s.Of), Used: s.Used, Soft: s.Soft, Hard: s.Hard,
		Level: s.Level.String(), Resets: s.Resets}
}
