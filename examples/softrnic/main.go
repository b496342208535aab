// Command softrnic is a RoCE endpoint in user space.
package main

func main() {}
