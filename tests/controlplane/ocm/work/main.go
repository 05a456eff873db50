// Command work is OCM's work agent. OCM's own command of this name also holds the hub's part of it, which needs
// sigs.k8s.io/about-api, and that the checksum database does not answer for.
package main

import (
	"context"
	"os"

	"k8s.io/utils/clock"

	ocmfeature "open-cluster-management.io/api/feature"
	commonoptions "open-cluster-management.io/ocm/pkg/common/options"
	"open-cluster-management.io/ocm/pkg/features"
	"open-cluster-management.io/ocm/pkg/version"
	"open-cluster-management.io/ocm/pkg/work/spoke"
)

func main() {
	common := commonoptions.NewAgentOptions()
	options := spoke.NewWorkloadAgentOptions()
	agent := spoke.NewWorkAgentConfig(common, options)
	command := common.CommonOpts.
		NewControllerCommandConfig("work-agent", version.Get(), agent.RunWorkloadAgent, clock.RealClock{}).
		NewCommandWithContext(context.Background())
	common.AddFlags(command.Flags())
	options.AddFlags(command.Flags())
	if err := features.SpokeMutableFeatureGate.Add(ocmfeature.DefaultSpokeWorkFeatureGates); err != nil {
		panic(err)
	}
	features.SpokeMutableFeatureGate.AddFlag(command.Flags())
	if err := command.Execute(); err != nil {
		os.Exit(1)
	}
}
