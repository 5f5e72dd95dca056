"""The stores that Chandy brings, one module for each kind, and what opens and retries them."""
