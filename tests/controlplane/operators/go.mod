// Versions of the modules whose CRD files are used; see ../README.md. Nothing is built of them, so what they require is
// not here and `go mod tidy` has nothing to do.
module dsf.test/controlplane/operators

go 1.26.0

require (
	github.com/cert-manager/cert-manager v1.19.0
	github.com/kedacore/keda/v2 v2.18.0
	github.com/openshift/api v0.0.0-20251125174858-5cf710f68a92
	github.com/prometheus-operator/prometheus-operator v0.85.0
	sigs.k8s.io/gateway-api v1.5.1
)
