"""The schedule: policies, costs and dependences, from a `Program` to the steps of a `Plan`."""
