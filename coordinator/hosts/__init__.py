"""The state hosts of the executors: started with them, told which tasks are theirs, emptied before they leave."""
