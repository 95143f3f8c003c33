"""How every request to the cluster is made: bounded, asked again, its errors named."""
