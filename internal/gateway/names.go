package gateway

import (
	"fmt"

	"github.com/sluice-gateway/sluice/engines/kubernetes/custom"
	"github.com/sluice-gateway/sluice/internal/condition"
)

// nameConditions lists the names that discovered servers and custom resources ask for in vain.
// Names of the file belong to the file.
func (g *Gateway) nameConditions() []condition.Condition {
	var all []condition.Condition
	for _, c := range g.launchers.upstream.Clashes() {
		all = append(all, condition.Fault(condition.NameClash, c.Name, "ListedByServer", c.Message()))
	}
	for _, r := range g.launchers.upstream.RefusedNames() {
		all = append(all, condition.Fault(condition.NamesRefused, r.Server, "InvalidNames", r.Message()))
	}
	for _, u := range g.launchers.upstream.Unlisted() {
		all = append(all, condition.Fault(condition.ModelNotListed, u.Subject(), "NotListed", u.Message()))
	}
	return append(all, g.launchers.resources.nameConditions()...)
}

// nameConditions lists the custom resources that are refused because their model has a name of the
// file or of another custom resource.
func (r *customResources) nameConditions() []condition.Condition {
	var all []condition.Condition
	r.eachObject(func(v *verdict, owner string) {
		if v.Kind == custom.Model && !v.Deleting && v.refused != "" && !v.frozen && owner != "" {
			all = append(all, condition.Fault(condition.NameClash, v.model, "AskedForByResource",
				fmt.Sprintf("The custom resource %s asks for the name %s, which is %s. It is refused.", v.Name, v.model, owner)))
		}
	})
	return all
}
