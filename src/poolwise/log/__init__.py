"""Log: what the user has, and the policies that play; reads nothing."""
