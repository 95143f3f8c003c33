"""Questions about a group and its topics; nothing is changed."""
