"""What is checked before anything is touched: the inventory, its variables, the hosts' facts."""
