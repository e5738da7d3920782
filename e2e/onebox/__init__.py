"""One machine, no cluster: does for a pod what kubelet and runtime do."""
