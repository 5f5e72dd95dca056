"""Reading state from outside: of any checkpoint as a DataFrame, of a running query by key."""
