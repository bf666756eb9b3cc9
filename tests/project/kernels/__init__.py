"""Every kernel of the project, compiled where NVRTC is installed. No GPU is needed."""
