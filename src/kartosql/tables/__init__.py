"""Tables of statements: what the planner and the engines know of them, and how names find them."""
