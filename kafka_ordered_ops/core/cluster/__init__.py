"""Values for what brokers report about topics, groups and reads, and checks of them."""
