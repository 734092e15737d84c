; x86-64-v3

define void @f(ptr noalias readonly captures(none) align 4 %A, ptr noalias readonly captures(none) align 4 %B, ptr noalias captures(none) align 4 %C, i64 %n, i64 %tid, i64 %nthreads, ptr %barrier) nounwind "stackrealign" {
entry:
  %.3 = icmp eq i64 %tid, 0
  br i1 %.3, label %first.1, label %join.2
first.1:
  %.4 = add i64 %n, 15
  %.5 = udiv i64 %.4, 16
  %.8 = icmp slt i64 0, %.5
  br i1 %.8, label %i_body.6, label %i_done.7
i_body.6:
  %i.9 = phi i64 [ 0, %first.1 ], [ %i_next.32, %join.24 ]
  %.10 = mul nsw i64 %i.9, -16
  %.11 = add nsw i64 %n, %.10
  %.12 = call i64 @llvm.smax.i64(i64 %.11, i64 0)
  %.13 = call i64 @llvm.smin.i64(i64 %.12, i64 16)
  %.14 = trunc i64 %.13 to i32
  %.15 = insertelement <8 x i32> poison, i32 %.14, i64 0
  %.16 = shufflevector <8 x i32> %.15, <8 x i32> poison, <8 x i32> zeroinitializer
  %.17 = icmp slt <8 x i32> <i32 0, i32 1, i32 2, i32 3, i32 4, i32 5, i32 6, i32 7>, %.16
  %.18 = trunc i64 %.13 to i32
  %.19 = insertelement <8 x i32> poison, i32 %.18, i64 0
  %.20 = shufflevector <8 x i32> %.19, <8 x i32> poison, <8 x i32> zeroinitializer
  %.21 = icmp slt <8 x i32> <i32 8, i32 9, i32 10, i32 11, i32 12, i32 13, i32 14, i32 15>, %.20
  %.22 = icmp slt i64 0, %.13
  br i1 %.22, label %then.23, label %join.24
then.23:
  %.25 = mul nsw i64 %i.9, 16
  %.26 = getelementptr float, ptr %A, i64 %.25
  %.27 = call <8 x float> @llvm.masked.load.v8f32.p0(ptr align 4 %.26, <8 x i1> %.17, <8 x float> zeroinitializer)
  %.28 = getelementptr float, ptr %.26, i64 8
  %.29 = call <8 x float> @llvm.masked.load.v8f32.p0(ptr align 4 %.28, <8 x i1> %.21, <8 x float> zeroinitializer)
  %.30 = getelementptr float, ptr %C, i64 %.25
  call void @llvm.masked.store.v8f32.p0(<8 x float> %.27, ptr align 4 %.30, <8 x i1> %.17)
  %.31 = getelementptr float, ptr %.30, i64 8
  call void @llvm.masked.store.v8f32.p0(<8 x float> %.29, ptr align 4 %.31, <8 x i1> %.21)
  br label %join.24
join.24:
  %i_next.32 = add nuw nsw i64 %i.9, 1
  %.33 = icmp slt i64 %i_next.32, %.5
  br i1 %.33, label %i_body.6, label %i_done.7, !llvm.loop !0
i_done.7:
  br label %join.2
join.2:
  ret void
}

declare <8 x float> @llvm.masked.load.v8f32.p0(ptr, <8 x i1>, <8 x float>)
declare void @llvm.masked.store.v8f32.p0(<8 x float>, ptr, <8 x i1>)
declare i64 @llvm.smax.i64(i64, i64)
declare i64 @llvm.smin.i64(i64, i64)

!0 = distinct !{!0, !{!"llvm.loop.vectorize.enable", i1 false}, !{!"llvm.loop.unroll.disable"}}
; znver4

define void @f(ptr noalias readonly captures(none) align 4 %A, ptr noalias readonly captures(none) align 4 %B, ptr noalias captures(none) align 4 %C, i64 %n, i64 %tid, i64 %nthreads, ptr %barrier) nounwind "stackrealign" {
entry:
  %.3 = icmp eq i64 %tid, 0
  br i1 %.3, label %first.1, label %join.2
first.1:
  %.4 = add i64 %n, 15
  %.5 = udiv i64 %.4, 16
  %.8 = icmp slt i64 0, %.5
  br i1 %.8, label %i_body.6, label %i_done.7
i_body.6:
  %i.9 = phi i64 [ 0, %first.1 ], [ %i_next.25, %join.20 ]
  %.10 = mul nsw i64 %i.9, -16
  %.11 = add nsw i64 %n, %.10
  %.12 = call i64 @llvm.smax.i64(i64 %.11, i64 0)
  %.13 = call i64 @llvm.smin.i64(i64 %.12, i64 16)
  %.14 = trunc i64 %.13 to i32
  %.15 = insertelement <16 x i32> poison, i32 %.14, i64 0
  %.16 = shufflevector <16 x i32> %.15, <16 x i32> poison, <16 x i32> zeroinitializer
  %.17 = icmp slt <16 x i32> <i32 0, i32 1, i32 2, i32 3, i32 4, i32 5, i32 6, i32 7, i32 8, i32 9, i32 10, i32 11, i32 12, i32 13, i32 14, i32 15>, %.16
  %.18 = icmp slt i64 0, %.13
  br i1 %.18, label %then.19, label %join.20
then.19:
  %.21 = mul nsw i64 %i.9, 16
  %.22 = getelementptr float, ptr %A, i64 %.21
  %.23 = call <16 x float> @llvm.masked.load.v16f32.p0(ptr align 4 %.22, <16 x i1> %.17, <16 x float> zeroinitializer)
  %.24 = getelementptr float, ptr %C, i64 %.21
  call void @llvm.masked.store.v16f32.p0(<16 x float> %.23, ptr align 4 %.24, <16 x i1> %.17)
  br label %join.20
join.20:
  %i_next.25 = add nuw nsw i64 %i.9, 1
  %.26 = icmp slt i64 %i_next.25, %.5
  br i1 %.26, label %i_body.6, label %i_done.7, !llvm.loop !0
i_done.7:
  br label %join.2
join.2:
  ret void
}

declare <16 x float> @llvm.masked.load.v16f32.p0(ptr, <16 x i1>, <16 x float>)
declare void @llvm.masked.store.v16f32.p0(<16 x float>, ptr, <16 x i1>)
declare i64 @llvm.smax.i64(i64, i64)
declare i64 @llvm.smin.i64(i64, i64)

!0 = distinct !{!0, !{!"llvm.loop.vectorize.enable", i1 false}, !{!"llvm.loop.unroll.disable"}}
