"""Kubernetes clusters with real nodes on one machine: API server, kubelet, containerd and pods, each cluster in a
network namespace of its own; images from Debian packages under the names that files of the project use. Needs root.
"""
