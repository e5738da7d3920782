"""The images of the Dockerfiles, built without a container engine or registry (`make images`)."""
