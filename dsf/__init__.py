"""The Dynamic Scoring Framework for Open Cluster Management."""

from pkgutil import extend_path

# Distributions of their own (packages/) add to this package.
__path__ = extend_path(__path__, __name__)
