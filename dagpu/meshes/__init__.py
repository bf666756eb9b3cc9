"""Values that lie on several devices of a mesh: layouts, shards, replicas, summands, and the ops that move them."""
