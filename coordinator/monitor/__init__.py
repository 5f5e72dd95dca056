"""A pipeline seen from outside its process: metrics, health, and the server that answers for them."""
