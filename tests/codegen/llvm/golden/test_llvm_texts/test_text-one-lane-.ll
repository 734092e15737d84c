; x86-64-v3

define void @f(ptr noalias readonly captures(none) align 4 %A, ptr noalias readonly captures(none) align 4 %B, ptr noalias captures(none) align 4 %C, i64 %n, i64 %tid, i64 %nthreads, ptr %barrier) nounwind "stackrealign" {
entry:
  %.3 = icmp eq i64 %tid, 0
  br i1 %.3, label %first.1, label %join.2
first.1:
  %.4 = udiv i64 %n, 8
  %.7 = icmp slt i64 0, %.4
  br i1 %.7, label %i_body.5, label %i_done.6
i_body.5:
  %i.8 = phi i64 [ 0, %first.1 ], [ %i_next.30, %join.25 ]
  %.9 = icmp eq <8 x i32> <i32 0, i32 1, i32 2, i32 3, i32 4, i32 5, i32 6, i32 7>, splat (i32 3)
  %.10 = call i1 @llvm.vector.reduce.or.v8i1(<8 x i1> %.9)
  br i1 %.10, label %then.11, label %join.12
then.11:
  %.13 = mul nsw i64 %i.8, 8
  %.14 = getelementptr float, ptr %A, i64 %.13
  %.15 = call <8 x float> @llvm.masked.load.v8f32.p0(ptr align 4 %.14, <8 x i1> %.9, <8 x float> zeroinitializer)
  %.16 = getelementptr float, ptr %C, i64 %.13
  call void @llvm.masked.store.v8f32.p0(<8 x float> %.15, ptr align 4 %.16, <8 x i1> %.9)
  br label %join.12
join.12:
  %.17 = call i64 @llvm.smax.i64(i64 %i.8, i64 -1)
  %.18 = call i64 @llvm.smin.i64(i64 %.17, i64 8)
  %.19 = trunc i64 %.18 to i32
  %.20 = insertelement <8 x i32> poison, i32 %.19, i64 0
  %.21 = shufflevector <8 x i32> %.20, <8 x i32> poison, <8 x i32> zeroinitializer
  %.22 = icmp ne <8 x i32> <i32 0, i32 1, i32 2, i32 3, i32 4, i32 5, i32 6, i32 7>, %.21
  %.23 = call i1 @llvm.vector.reduce.or.v8i1(<8 x i1> %.22)
  br i1 %.23, label %then.24, label %join.25
then.24:
  %.26 = mul nsw i64 %i.8, 8
  %.27 = getelementptr float, ptr %B, i64 %.26
  %.28 = call <8 x float> @llvm.masked.load.v8f32.p0(ptr align 4 %.27, <8 x i1> %.22, <8 x float> zeroinitializer)
  %.29 = getelementptr float, ptr %C, i64 %.26
  call void @llvm.masked.store.v8f32.p0(<8 x float> %.28, ptr align 4 %.29, <8 x i1> %.22)
  br label %join.25
join.25:
  %i_next.30 = add nuw nsw i64 %i.8, 1
  %.31 = icmp slt i64 %i_next.30, %.4
  br i1 %.31, label %i_body.5, label %i_done.6, !llvm.loop !0
i_done.6:
  br label %join.2
join.2:
  ret void
}

declare <8 x float> @llvm.masked.load.v8f32.p0(ptr, <8 x i1>, <8 x float>)
declare void @llvm.masked.store.v8f32.p0(<8 x float>, ptr, <8 x i1>)
declare i64 @llvm.smax.i64(i64, i64)
declare i64 @llvm.smin.i64(i64, i64)
declare i1 @llvm.vector.reduce.or.v8i1(<8 x i1>)

!0 = distinct !{!0, !{!"llvm.loop.vectorize.enable", i1 false}, !{!"llvm.loop.unroll.disable"}}
; znver4

define void @f(ptr noalias readonly captures(none) align 4 %A, ptr noalias readonly captures(none) align 4 %B, ptr noalias captures(none) align 4 %C, i64 %n, i64 %tid, i64 %nthreads, ptr %barrier) nounwind "stackrealign" {
entry:
  %.3 = icmp eq i64 %tid, 0
  br i1 %.3, label %first.1, label %join.2
first.1:
  %.4 = udiv i64 %n, 8
  %.7 = icmp slt i64 0, %.4
  br i1 %.7, label %i_body.5, label %i_done.6
i_body.5:
  %i.8 = phi i64 [ 0, %first.1 ], [ %i_next.30, %join.25 ]
  %.9 = icmp eq <8 x i32> <i32 0, i32 1, i32 2, i32 3, i32 4, i32 5, i32 6, i32 7>, splat (i32 3)
  %.10 = call i1 @llvm.vector.reduce.or.v8i1(<8 x i1> %.9)
  br i1 %.10, label %then.11, label %join.12
then.11:
  %.13 = mul nsw i64 %i.8, 8
  %.14 = getelementptr float, ptr %A, i64 %.13
  %.15 = call <8 x float> @llvm.masked.load.v8f32.p0(ptr align 4 %.14, <8 x i1> %.9, <8 x float> zeroinitializer)
  %.16 = getelementptr float, ptr %C, i64 %.13
  call void @llvm.masked.store.v8f32.p0(<8 x float> %.15, ptr align 4 %.16, <8 x i1> %.9)
  br label %join.12
join.12:
  %.17 = call i64 @llvm.smax.i64(i64 %i.8, i64 -1)
  %.18 = call i64 @llvm.smin.i64(i64 %.17, i64 8)
  %.19 = trunc i64 %.18 to i32
  %.20 = insertelement <8 x i32> poison, i32 %.19, i64 0
  %.21 = shufflevector <8 x i32> %.20, <8 x i32> poison, <8 x i32> zeroinitializer
  %.22 = icmp ne <8 x i32> <i32 0, i32 1, i32 2, i32 3, i32 4, i32 5, i32 6, i32 7>, %.21
  %.23 = call i1 @llvm.vector.reduce.or.v8i1(<8 x i1> %.22)
  br i1 %.23, label %then.24, label %join.25
then.24:
  %.26 = mul nsw i64 %i.8, 8
  %.27 = getelementptr float, ptr %B, i64 %.26
  %.28 = call <8 x float> @llvm.masked.load.v8f32.p0(ptr align 4 %.27, <8 x i1> %.22, <8 x float> zeroinitializer)
  %.29 = getelementptr float, ptr %C, i64 %.26
  call void @llvm.masked.store.v8f32.p0(<8 x float> %.28, ptr align 4 %.29, <8 x i1> %.22)
  br label %join.25
join.25:
  %i_next.30 = add nuw nsw i64 %i.8, 1
  %.31 = icmp slt i64 %i_next.30, %.4
  br i1 %.31, label %i_body.5, label %i_done.6, !llvm.loop !0
i_done.6:
  br label %join.2
join.2:
  ret void
}

declare <8 x float> @llvm.masked.load.v8f32.p0(ptr, <8 x i1>, <8 x float>)
declare void @llvm.masked.store.v8f32.p0(<8 x float>, ptr, <8 x i1>)
declare i64 @llvm.smax.i64(i64, i64)
declare i64 @llvm.smin.i64(i64, i64)
declare i1 @llvm.vector.reduce.or.v8i1(<8 x i1>)

!0 = distinct !{!0, !{!"llvm.loop.vectorize.enable", i1 false}, !{!"llvm.loop.unroll.disable"}}
