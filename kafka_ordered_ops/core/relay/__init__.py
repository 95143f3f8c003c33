"""What the relay's log says, and which records its owner may hand out: decisions of the relay."""
